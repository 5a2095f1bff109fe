"""What is measured: gateways, SGLang's own server, a floor, any URL; each with its processes by part."""
