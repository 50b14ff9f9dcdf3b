"""The parts of the step `publish_delivery`: one visit under a lease, and whom it wakes after."""
