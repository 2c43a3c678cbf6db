"""The verbs of the contract, as values that hosts and clients share: their requests, and one row for each verb.

It knows the wire form and the values, and neither hosts nor sockets.
Begin with `verbs`; `requests` is generated from idl/foqs.thrift.
"""
