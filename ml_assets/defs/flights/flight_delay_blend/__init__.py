"""`flight_delay` by the weighted mean of trees and a network, on the same rows and columns as either alone."""
