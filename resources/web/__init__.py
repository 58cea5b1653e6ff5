"""HTTP of servers and clients: bounds, sign-in, webhooks, last answers."""
