"""Contains all the data models used in inputs/outputs"""

from .checkpoint_document import CheckpointDocument
from .commit_document import CommitDocument
from .cost_row_document import CostRowDocument
from .costs_document import CostsDocument
from .costs_document_by import CostsDocumentBy
from .estimate_document import EstimateDocument
from .expected_document import ExpectedDocument
from .experiment_run import ExperimentRun
from .experiment_run_details import ExperimentRunDetails
from .experiment_run_details_artifacts import ExperimentRunDetailsArtifacts
from .experiment_run_details_metrics import ExperimentRunDetailsMetrics
from .experiment_run_details_params import ExperimentRunDetailsParams
from .experiment_run_details_status import ExperimentRunDetailsStatus
from .experiment_run_details_tags import ExperimentRunDetailsTags
from .experiment_run_metrics import ExperimentRunMetrics
from .experiment_run_status import ExperimentRunStatus
from .foreign_input import ForeignInput
from .foreign_model import ForeignModel
from .foreign_row import ForeignRow
from .foreign_row_inputs import ForeignRowInputs
from .get_costs_by import GetCostsBy
from .get_health_response_get_health import GetHealthResponseGetHealth
from .goodput_document import GoodputDocument
from .launch_request import LaunchRequest
from .launch_request_config import LaunchRequestConfig
from .list_page_commit_document import ListPageCommitDocument
from .list_page_experiment_run import ListPageExperimentRun
from .list_page_model_document import ListPageModelDocument
from .list_page_version_document import ListPageVersionDocument
from .model_document import ModelDocument
from .plan_document import PlanDocument
from .plan_document_refused import PlanDocumentRefused
from .plan_document_to_build import PlanDocumentToBuild
from .plan_document_to_rebuild import PlanDocumentToRebuild
from .problem_document import ProblemDocument
from .rule_document import RuleDocument
from .run_document import RunDocument
from .run_document_state import RunDocumentState
from .scheduled_share_document import ScheduledShareDocument
from .scheduled_trainings_document import ScheduledTrainingsDocument
from .seen_days import SeenDays
from .spending_document import SpendingDocument
from .stage_document import StageDocument
from .stage_request import StageRequest
from .stage_request_stage import StageRequestStage
from .study_document import StudyDocument
from .study_request import StudyRequest
from .study_request_config import StudyRequestConfig
from .training_cost_document import TrainingCostDocument
from .training_request import TrainingRequest
from .training_request_config import TrainingRequestConfig
from .trial_document import TrialDocument
from .trial_document_parameters import TrialDocumentParameters
from .trial_document_state import TrialDocumentState
from .verdict_document import VerdictDocument
from .verdict_document_findings_item import VerdictDocumentFindingsItem
from .version_details import VersionDetails
from .version_document import VersionDocument

__all__ = (
    "CheckpointDocument",
    "CommitDocument",
    "CostRowDocument",
    "CostsDocument",
    "CostsDocumentBy",
    "EstimateDocument",
    "ExpectedDocument",
    "ExperimentRun",
    "ExperimentRunDetails",
    "ExperimentRunDetailsArtifacts",
    "ExperimentRunDetailsMetrics",
    "ExperimentRunDetailsParams",
    "ExperimentRunDetailsStatus",
    "ExperimentRunDetailsTags",
    "ExperimentRunMetrics",
    "ExperimentRunStatus",
    "ForeignInput",
    "ForeignModel",
    "ForeignRow",
    "ForeignRowInputs",
    "GetCostsBy",
    "GetHealthResponseGetHealth",
    "GoodputDocument",
    "LaunchRequest",
    "LaunchRequestConfig",
    "ListPageCommitDocument",
    "ListPageExperimentRun",
    "ListPageModelDocument",
    "ListPageVersionDocument",
    "ModelDocument",
    "PlanDocument",
    "PlanDocumentRefused",
    "PlanDocumentToBuild",
    "PlanDocumentToRebuild",
    "ProblemDocument",
    "RuleDocument",
    "RunDocument",
    "RunDocumentState",
    "ScheduledShareDocument",
    "ScheduledTrainingsDocument",
    "SeenDays",
    "SpendingDocument",
    "StageDocument",
    "StageRequest",
    "StageRequestStage",
    "StudyDocument",
    "StudyRequest",
    "StudyRequestConfig",
    "TrainingCostDocument",
    "TrainingRequest",
    "TrainingRequestConfig",
    "TrialDocument",
    "TrialDocumentParameters",
    "TrialDocumentState",
    "VerdictDocument",
    "VerdictDocumentFindingsItem",
    "VersionDetails",
    "VersionDocument",
)
