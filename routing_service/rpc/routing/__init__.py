"""The RPCs of RoutingService: each checks its request, maps it, calls the handler and maps back."""
