"""What tests around a real SGLang share: servers, requests, and programs of their own."""
