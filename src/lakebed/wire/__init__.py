"""What travels between client and server: messages, predicates, the checks of what arrives."""
