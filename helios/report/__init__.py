"""Tables, figures and pages from recorded or replayed history."""
