"""The source system of the team in pods: an object in its artifacts says on which day its newest week ended.

Part of the team's image. A test writes the object, so that new data arrives at the moment of its choice.
"""

import os
from datetime import date
from urllib.parse import urlsplit

KEY = "newest-day"


def newest() -> date:
    """Return the newest day that is complete. Raises `ClientError` without the object."""
    import boto3

    place = urlsplit(os.environ["ML_ASSETS_ARTIFACTS_URL"])
    s3 = boto3.client("s3", endpoint_url=os.environ["ML_ASSETS_S3_ENDPOINT_URL"])
    answer = s3.get_object(Bucket=place.netloc, Key=f"{place.path.strip('/')}/{KEY}")
    return date.fromisoformat(answer["Body"].read().decode())
