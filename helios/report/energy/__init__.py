"""What sleeping nodes save: of imagined policies (``whatif``) and of the real cluster."""
