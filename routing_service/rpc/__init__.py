"""The gRPC face of the service: the only part that knows protobuf."""
