"""Reading of provenance with in-toto's own library, with nothing of ours."""

import base64
import json

from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

from ml_assets.extras.governance.dossier.documents import PREDICATE


def require_in_toto(envelope: str) -> provenance_pb2.Provenance:
    """Return the predicate of a signed envelope, which in-toto's parser and validator must accept."""
    statement = json_format.Parse(
        base64.b64decode(json.loads(envelope)["payload"]), statement_pb2.Statement()
    )
    Statement.copy_from_pb(statement).validate()
    assert statement.predicate_type == PREDICATE
    return json_format.ParseDict(json_format.MessageToDict(statement.predicate), provenance_pb2.Provenance())
