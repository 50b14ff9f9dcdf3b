"""What is true and allowed. No database, queue, network, environment or clock in here."""
