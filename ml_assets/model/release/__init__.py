"""Release of trained weights as a registered model.

bundle, onnx_graph, bundle_store              a bundle: its construction, its facts and their store
runtime, pyfunc                               the files that every bundle carries and runs
promotion, reviews, rollback                  decisions, as functions over `releases`
rules, rules_in_force, standing               what a decision rests on
history, signing_keys                         decisions in words; keys that rules name
registry, mlflow_view                         versions in MLflow, and what MLflow shows of the ledger
initial_version, known_versions               readers: of trainings, of servers and notebooks
"""
