"""Applications as users write them, for --app."""
