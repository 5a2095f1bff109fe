"""SGLang's messages: the two codecs and the sockets."""
