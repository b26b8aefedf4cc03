"""The RPCs of AdminService: what operators can read and do."""
