"""What happens when: callbacks, which hold no arithmetic."""
