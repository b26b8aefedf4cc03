"""The contract agent_routing.v1: messages, enums and stubs, generated from protos/.

Everything beside this file is generated (`make protos`). Import the modules by name:
    from agent_routing.v1 import routing_service_pb2, routing_service_pb2_grpc
"""
