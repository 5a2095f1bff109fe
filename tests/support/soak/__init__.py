"""The soak test of extension images."""
