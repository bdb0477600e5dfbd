"""Other ways to store and load the same samples, one per file, each as its documentation says to use it.

Each module has `PEERS`; packages are imported when a peer is built or opened, so that missing ones are left out.
"""

from __future__ import annotations

from . import array_record, ffcv, h5py, jpeg_folder, litdata, lmdb, pt_files, streaming, tfrecord, webdataset, zarr

__all__ = ["PEERS"]

PEERS = [
    peer
    for module in (
        h5py,
        ffcv,
        lmdb,
        litdata,
        streaming,
        webdataset,
        array_record,
        zarr,
        tfrecord,
        pt_files,
        jpeg_folder,
    )
    for peer in module.PEERS
]
