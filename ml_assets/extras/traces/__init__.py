"""Traces of runs that ended: run, steps, launches, attempts and workers as spans, sent by OTLP. Free of Dagster.

A trace is made from records after the run, so pods need no way to the collector, and a worker that was killed is in it.
Here: the spans of a training (`training_spans`), the message to the collector (`otlp`). Not here: runs and steps of
Dagster, and when they are told (`components.sensors.traces`).
"""
