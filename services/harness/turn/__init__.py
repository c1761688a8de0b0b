"""What every harness type does alike: fold the log, decide, run calls. Types use it; it knows none of them."""
