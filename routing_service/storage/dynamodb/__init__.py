"""The DynamoDB engine."""
