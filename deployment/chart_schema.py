"""JSON Schema of the chart's values (`values.schema.json`): Helm refuses an unknown key, and names it.

Belongs here: the form of each value. Its meaning and default are in `helm/ml-assets/values.yaml`.
"""

from typing import Any

from resources.settings import KubernetesSettings, Settings

Schema = dict[str, Any]

CHOSEN_BY_THE_CHART = {
    "ML_ASSETS_HOME",
    "ML_ASSETS_LAUNCHER",
    "ML_ASSETS_KUBERNETES",
    "ML_ASSETS_KUBERNETES_BACKEND",
    "ML_ASSETS_KUBERNETES_ISOLATED",
    "ML_ASSETS_KUBERNETES_NAMESPACE",
    "ML_ASSETS_KUBERNETES_IMAGE",
    "ML_ASSETS_KUBERNETES_S3_SECRET",
    "STEP_LOGS_BUCKET",
}
"""Variables that follow from other values, or from the image."""
SECRET = {"ML_ASSETS_LEDGER_URL", "ML_ASSETS_DAGSTER_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
"""Variables of the Secret that are not `SecretStr`: addresses with a password, and keys that botocore reads."""
REQUIRED = (
    "ML_ASSETS_ENVIRONMENT",
    "ML_ASSETS_AUTHOR",
    "ML_ASSETS_LAKE_URL",
    "ML_ASSETS_LAKE_STORAGE",
    "ML_ASSETS_ARTIFACTS_URL",
    "ML_ASSETS_TRACKING_URI",
)

TEXT: Schema = {"type": "string", "minLength": 1}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}
OPTIONAL_NAME: Schema = {"type": "string", "pattern": "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"}
IMAGE: Schema = {"type": "string", "pattern": r"^[^\s@]+(@sha256:[0-9a-f]{64}|:[\w][\w.-]*)$"}
OPTIONAL_IMAGE: Schema = {"type": "string", "pattern": rf"^$|{IMAGE['pattern']}"}
MODEL: Schema = {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,53}$"}
QUANTITY: Schema = {"type": ["string", "number"], "pattern": "^[0-9.]+(m|[kMGTP]|[KMGTP]i)?$"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
FLAG: Schema = {"type": "boolean"}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
RESOURCE_NAMES: Schema = {"pattern": "^(cpu|memory|ephemeral-storage|[a-z0-9.-]+/[A-Za-z0-9._-]+)$"}
"""Names of resources; those of devices have a domain, such as `nvidia.com/mig-1g.10gb`."""
AMOUNTS: Schema = {"type": "object", "propertyNames": RESOURCE_NAMES, "additionalProperties": QUANTITY}


def values_schema() -> Schema:
    """Return the schema of `values.yaml` with the values of a team."""
    sized = _keys(resources=_keys(requests=AMOUNTS, limits=AMOUNTS))
    where = {
        "nodeSelector": LABELS,
        "tolerations": _list({"type": "object"}),
        "priorityClassName": OPTIONAL_NAME,
        "podAnnotations": LABELS,
        "podLabels": LABELS,
    }
    share = _keys(
        ["trainings", "borrowed", "platform"], trainings=COUNT, borrowed=COUNT, platform=COUNT, unit=TEXT
    )
    account = _keys(annotations=LABELS)
    places = _keys(
        ports={**_list(PORT), "minItems": 1},
        addresses=_list(TEXT),
        exceptions=_list(TEXT),
        namespaces=_list(NAME),
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_keys(
            ["images", "settings"],
            images=_keys(["platform", "trainer"], platform=IMAGE, trainer=IMAGE, pullSecrets=_list(NAME)),
            settings=_settings(),
            secrets=_keys(platform=NAME, trainers=NAME),
            accounts=_keys(dagster=account, run=account, pruner=account, trainer=account, api=account,
                           serving=account),
            platform=_keys(**where),
            webserver=sized,
            daemon=sized,
            codeLocation=sized,
            runs=_keys(mostAtOnce={**COUNT, "minimum": 1}, **sized["properties"], **where),
            quota=_keys(
                pods=COUNT,
                resources={"type": "object", "propertyNames": RESOURCE_NAMES, "additionalProperties": share},
            ),
            containerDefaults=_keys(requests=AMOUNTS, limits=AMOUNTS),
            queue=_keys(enabled=FLAG, name=NAME, cohort=NAME, weight=COUNT, flavor=NAME, required=FLAG),
            jobset=_keys(enabled=FLAG),
            trainjob=_keys(enabled=FLAG),
            network=_keys(
                servers=places,
                workers=places,
                dns=_keys(namespaces=_list(NAME), addresses=_list(TEXT)),
                ingress=_list({**LABELS, "minProperties": 1}),
            ),
            metrics=_keys(
                enabled=FLAG,
                port=PORT,
                labels=LABELS,
                readers={**_list({**LABELS, "minProperties": 1}), "minItems": 1},
            ),
            proxy=_keys(enabled=FLAG, **sized["properties"]),
            oauth2Proxy=_keys(
                enabled=FLAG, image=OPTIONAL_IMAGE, issuer={"type": "string"}, secret=NAME, **sized["properties"]
            ),
            api=_keys(enabled=FLAG, **sized["properties"]),
            serving=_keys(
                enabled=FLAG,
                models=_list(MODEL),
                replicas={**COUNT, "minimum": 1},
                options=_list(TEXT),
                **sized["properties"],
            ),
            ray=_keys(enabled=FLAG, head=sized, workers=COUNT, tasks=COUNT, worker=sized),
            prepare=FLAG,
            # Helm's own, for a chart that has this one as a part.
            **{"global": {"type": "object"}},
        ),
    }  # fmt: skip


def _settings() -> Schema:
    """Return the form of the environment variables: our names exactly, and a pipeline's own."""
    ours = {
        f"{section.model_config.get('env_prefix', '')}{name.upper()}"
        for section in (Settings, KubernetesSettings)
        for name, field in section.model_fields.items()
        if "SecretStr" not in str(field.annotation)
    }
    taken = sorted(SECRET | {one for one in CHOSEN_BY_THE_CHART if not one.startswith("ML_ASSETS_")})
    own = {"pattern": "^[A-Z][A-Z0-9_]*$", "not": {"anyOf": [{"pattern": "^ML_ASSETS_"}, {"enum": taken}]}}
    known = {"enum": sorted(ours - CHOSEN_BY_THE_CHART - SECRET)}
    return {
        "type": "object",
        "required": list(REQUIRED),
        "propertyNames": {"anyOf": [known, own]},
        "additionalProperties": {"type": "string"},
    }


def _keys(required: list[str] | None = None, /, **properties: Schema) -> Schema:
    """Return an object with these keys and no others."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}
