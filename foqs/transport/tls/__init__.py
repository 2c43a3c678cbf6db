"""TLS on the port of the server: the layer below a connection, the turns of handshakes, and the host's certificate.

It knows bytes and certificates, and neither calls nor principals. Begin with `layer`.
"""
