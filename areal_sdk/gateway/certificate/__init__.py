"""Token-exactness certificates: will what a model samples be trained exactly as it was sampled?"""

from areal_sdk.gateway.certificate.certify import certify
from areal_sdk.gateway.certificate.findings import Certificate, Finding, Level
from areal_sdk.gateway.certificate.store import is_certified, keep, warning
from areal_sdk.gateway.certificate.transcripts import (
    Request,
    Transcript,
    read_transcript,
    recorded,
)

__all__ = [
    "Certificate",
    "Finding",
    "Level",
    "Request",
    "Transcript",
    "certify",
    "is_certified",
    "keep",
    "read_transcript",
    "recorded",
    "warning",
]
