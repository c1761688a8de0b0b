"""The rules of vault_proxy. Values in, values out: no clock, no network, no log, no protobuf.

origin      where a credential may be sent, and which addresses may be called at all
naming      what a server's tools are called towards the model
schema      how a tool's input schema is mended so that the model's API takes it
catalog     the tools of one server, mended, named and counted
answer      what a tool said, as the model is told
scrub       taking a credential out of what a server says
"""
