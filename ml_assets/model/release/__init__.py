"""Release of trained weights as a registered model.

bundle, onnx_graph, facts, bundle_store       a bundle: its construction, its content, its store
runtime, pyfunc                               the files that every bundle carries and runs
registration, promotion, reviews, rollback    decisions, as functions over `releases`
rules, rules_in_force, standing, dossiers     what a decision rests on
history                                       decisions in words
registry, mlflow_view, mlflow_guard           versions in MLflow, and what MLflow shows of the ledger
initial_version, known_versions               readers: of trainings, of servers and notebooks
"""
