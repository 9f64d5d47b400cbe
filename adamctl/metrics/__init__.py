"""What a cluster tells Prometheus: read from STATUS replies, shown at one address."""
