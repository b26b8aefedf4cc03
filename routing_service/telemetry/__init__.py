"""What the service says about itself: call records, logs, metrics and traces."""
