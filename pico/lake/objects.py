"""Dialects of object stores: patience, what their refusals mean, uploads that were never finished.

`storage` calls it with the file systems and exceptions of fsspec, which it tells apart by what they
say, so that it needs neither fsspec nor s3fs itself. Every store has its own words for "there is
such an object", and s3fs lets exceptions of four libraries through.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pico.errors import one_line

S3 = ("s3", "s3a")
_SECRETS_OF_THE_ENVIRONMENT = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN")
_SECRET_NAME = re.compile("key|secret|token|pass|credential|auth", re.IGNORECASE)
_PATIENCE = {"connect_timeout": 10, "read_timeout": 20}
_RETRIES = {"mode": "standard", "total_max_attempts": 5}
_ROUNDS = 2
"""How often s3fs begins anew after botocore has given up (an answer that breaks off, SlowDown)."""
_ENDPOINT = "check endpoint_url (AWS_ENDPOINT_URL) and the network"
_KEYS = "check the key and secret (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or storage_options)"
_LATER = "it is overloaded or failing; try again later"
_WAYS_OUT = {
    "NoCredentialsError": f"no credentials; {_KEYS}",
    "PartialCredentialsError": f"half of the credentials; {_KEYS}",
    "TokenRetrievalError": "credentials that cannot be renewed; log in again",
    "EndpointConnectionError": f"no connection; {_ENDPOINT}",
    "ConnectTimeoutError": f"no connection in time; {_ENDPOINT}",
    "ReadTimeoutError": f"no answer in time; {_ENDPOINT}",
    "FSTimeoutError": f"no answer in time; {_ENDPOINT}",
    "ConnectionClosedError": f"the connection broke off; {_ENDPOINT}",
    "ClientPayloadError": f"the answer broke off; {_ENDPOINT}",
    "InvalidAccessKeyId": f"the access key is unknown; {_KEYS}",
    "SignatureDoesNotMatch": f"the secret does not fit the key; {_KEYS}",
    "ExpiredToken": "the session token has expired; get a new one",
    "AccessDenied": "access denied; ask the bucket's owner for the right to do this",
    "403": "access denied; ask the bucket's owner for the right to do this",
    "NoSuchBucket": "there is no such bucket; create it, or correct the URL",
    "SlowDown": _LATER,
    "ServiceUnavailable": _LATER,
    "InternalError": _LATER,
    "500": _LATER,
    "502": _LATER,
    "503": _LATER,
}


@dataclass(frozen=True)
class Upload:
    """A multipart upload that was begun and neither completed nor aborted."""

    path: str
    """The file that it would become, relative to the lake."""
    id: str
    started: float
    """POSIX seconds, by the store's clock."""


def connection(protocol: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options with what this package sets unless they or the environment do.

    A dead store is given up after minutes instead of never, and a new connection sees the
    credentials of now: s3fs would go on with those of the first connection of the process.
    """
    chosen = dict(options)
    if protocol not in S3:
        return chosen
    config = dict(_PATIENCE)
    if not {"AWS_RETRY_MODE", "AWS_MAX_ATTEMPTS"} & set(os.environ):
        config["retries"] = dict(_RETRIES)  # type: ignore[assignment]
    chosen["config_kwargs"] = config | dict(chosen.get("config_kwargs") or {})
    chosen.setdefault("skip_instance_cache", True)
    return chosen


def patient(filesystem: Any) -> Any:
    """Return the file system; an S3 one repeats less what botocore has repeated already."""
    if is_s3(filesystem):
        filesystem.retries = _ROUNDS
    return filesystem


def is_s3(filesystem: Any) -> bool:
    """Say whether a file system speaks S3, multipart uploads included."""
    return hasattr(filesystem, "call_s3")


def reading(filesystem: Any) -> dict[str, Any]:
    """Return the options that keep a read of a whole object from asking for its size first."""
    return {"max_concurrency": 1} if is_s3(filesystem) else {}


def is_present(error: BaseException) -> bool:
    """Say whether a store refused put-if-absent because there is such an object.

    AWS says so by `FileExistsError`; Ceph by HTTP 412 inside EINVAL; others by a bare 412.
    """
    code, status = _answer(error)
    return (
        isinstance(error, FileExistsError) or code in ("PreconditionFailed", "412") or status == 412
    )


def is_conflict(error: BaseException) -> bool:
    """Say whether a conditional PUT met another one at work (HTTP 409): it is to be repeated."""
    code, status = _answer(error)
    return code in ("ConditionalRequestConflict", "OperationAborted") or status == 409


def is_unknown_condition(error: BaseException) -> bool:
    """Say whether a store refused put-if-absent because it does not know it."""
    code, status = _answer(error)
    return code == "NotImplemented" or status == 501


def reason(error: BaseException) -> str:
    """Return why a store failed and the way out, in one line."""
    code, status = _answer(error)
    for word in (code, *(kind.__name__ for kind in type(error).__mro__), str(status or "")):
        if word in _WAYS_OUT:
            return f"{_WAYS_OUT[word]} ({one_line(error)})"
    if isinstance(error, TimeoutError):
        return f"no answer in time: {one_line(error)}"
    return one_line(error)


def uploads(filesystem: Any, root: str, prefix: str) -> Iterator[Upload]:
    """Yield the unfinished multipart uploads to files below a folder of the lake."""
    if not is_s3(filesystem):
        return
    bucket, _, key = root.partition("/")
    below = f"{key}/" if key else ""
    marker: dict[str, Any] = {}
    while True:
        answer = filesystem.call_s3(
            "list_multipart_uploads", Bucket=bucket, Prefix=below + prefix, **marker
        )
        for upload in answer.get("Uploads", ()):
            path = upload["Key"]
            if path.startswith(below):
                yield Upload(
                    path.removeprefix(below), upload["UploadId"], upload["Initiated"].timestamp()
                )
        if not answer.get("IsTruncated"):
            return
        marker = {
            "KeyMarker": answer["NextKeyMarker"],
            "UploadIdMarker": answer.get("NextUploadIdMarker", ""),
        }


def abort(filesystem: Any, root: str, upload: Upload) -> None:
    """Abort an upload; one that is gone already is no error."""
    bucket, _, key = root.partition("/")
    path = f"{key}/{upload.path}" if key else upload.path
    with contextlib.suppress(FileNotFoundError):
        filesystem.call_s3("abort_multipart_upload", Bucket=bucket, Key=path, UploadId=upload.id)


def hider(options: Mapping[str, Any]) -> Callable[[str], str]:
    """Return a function that blots out of a message the secrets of options and environment."""
    found = {os.environ.get(name, "") for name in _SECRETS_OF_THE_ENVIRONMENT}
    todo: list[Any] = [options]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            for name, value in item.items():
                is_secret = isinstance(value, str) and _SECRET_NAME.search(str(name))
                found |= {value} if is_secret else set()
                todo.append(value)
        elif isinstance(item, list | tuple):
            todo.extend(item)
    secrets = sorted((text for text in found if len(text) > 3), key=len, reverse=True)
    return partial(_hide, secrets)  # unlike a closure, it can go to another process


def _hide(secrets: Sequence[str], message: str) -> str:
    for secret in secrets:
        message = message.replace(secret, "***")
    return message


def _answer(error: BaseException) -> tuple[str, int | None]:
    """Return the code and HTTP status of the answer that an exception stands for, if any."""
    for said in (error, error.__cause__):
        answer = getattr(said, "response", None)
        if isinstance(answer, Mapping):
            code = str(answer.get("Error", {}).get("Code", ""))
            return code, answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return "", None
