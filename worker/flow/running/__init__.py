"""The parts of the step `run_step`: what one visit does in each of the five steps of a guided release."""
