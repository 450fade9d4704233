"""The same schedules in PyTorch's pipeline runtime."""
