"""Flights out of New York in 2013: will one arrive more than 15 minutes late, two hours before departure."""
