"""Tables, figures, pages: from history, real or replayed alike."""
