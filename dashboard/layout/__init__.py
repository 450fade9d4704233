"""What stands where: pure functions from state to components."""
