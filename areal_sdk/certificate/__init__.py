"""Certificates of token exactness: are a model's samples trained exactly as they were sampled?"""

from areal_sdk.certificate.findings import Certificate, TokenFinding
from areal_sdk.certificate.issue import certify, format_in_key, is_certified, keep, warning
from areal_sdk.certificate.replay import Transcript, TranscriptRequest, read_transcript, recorded

__all__ = [
    "Certificate",
    "TokenFinding",
    "TranscriptRequest",
    "Transcript",
    "certify",
    "format_in_key",
    "is_certified",
    "keep",
    "read_transcript",
    "recorded",
    "warning",
]
