"""Route of a version's stage, by the rules of `ml-assets promote`, `approve`, `reject` and `archive`."""

from ml_assets.context import Context
from ml_assets.extras.api.frame import ApiParts, Caller, Routes
from ml_assets.extras.api.problems import ApiRefused
from ml_assets.extras.api.shapes import Name, Number, StageDocument, StageRequest
from ml_assets.extras.governance.proxy.persons import PageVisitor
from resources.ledger import Archival, Promotion, Review


def add_stages(routes: Routes, parts: ApiParts) -> None:
    """Add the route."""

    @routes.add(
        "PUT",
        "/models/{name}/versions/{v}/stage",
        role="approver",
        summary="Approve, reject, promote or archive a version",
        refuses=(404, 409),
    )
    def decide(name: Name, v: Number, asked: StageRequest, caller: Caller) -> StageDocument:
        with parts.declared:
            _require_group(parts.context, name, caller)
            row, is_new, notes = _decided(parts.context, name, v, asked, caller)
        return StageDocument(
            model=name,
            version=v,
            stage=parts.context.project.releases.standings(name).of(row.bundle_digest).stage,
            changed=is_new,
            by=row.by.name,
            reason=row.reason,
            at=row.at,
            notes=notes,
        )


def _decided(
    context: Context, model: str, version: int, asked: StageRequest, caller: PageVisitor
) -> tuple[Promotion | Review | Archival, bool, list[str]]:
    """Return the row of the decision, if it is new, and notes on it."""
    by, reason, notes = caller.person, asked.reason, list[str]()
    match asked.stage:
        case "production":
            made = context.promote(model, version, by=by, reason=reason, on_missing=notes.append)
            return made.promotion, made.promotion != made.before, [*made.breaks, *notes]
        case "approved" | "rejected":
            review = context.approve if asked.stage == "approved" else context.reject
            found = review(model, version, by=by, reason=reason)
            return found.review, found.is_new, notes
        case "archived":
            archival = context.archive(model, version, by=by, reason=reason)
            return archival, (archival.by, archival.reason) == (by, reason), notes


def _require_group(context: Context, model: str, caller: PageVisitor) -> None:
    """Raise `ApiRefused` if the caller's role is limited to other groups than the model's."""
    groups = caller.standing.groups
    if not groups:
        return
    spec = context.project.declared.find_pipeline(model)
    if spec is None or spec.group_name not in groups:
        of = f"of the group {spec.group_name}" if spec else "of no known group"
        raise ApiRefused(
            403, "role_needed", f"{model} is {of}, and your role is limited to {', '.join(groups)}"
        )
