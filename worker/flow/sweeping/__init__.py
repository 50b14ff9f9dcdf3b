"""The parts of the step `sweep_fleet`: the wakes that one sweep sends, and what it measured of them."""
