"""Floor 3: values -> ops."""
