"""The commands of ``agent-routing topics``, and what ``agent-routing check`` says of topics."""
