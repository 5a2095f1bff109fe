"""Measures a gateway, and SGLang's own server or any other beside it, with the model's time taken out."""
