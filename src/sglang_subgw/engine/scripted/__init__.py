"""A scheduler without a model for unmodified SGLang, and what serves over it: for the bench."""
