"""The comparison with other approaches: the same stories played by each, and the page's tables."""
