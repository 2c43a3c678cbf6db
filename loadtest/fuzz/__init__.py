"""The front door under hostile bytes: fuzzers of the frame path and of the live port, floods, worst inputs."""
