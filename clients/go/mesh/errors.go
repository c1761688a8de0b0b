package mesh

import (
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a call that failed. Branch on Reason, or on Code; the text is for people and may change.
//
// Reason is a name of handmesh.error.v1.ErrorReason without its prefix, and Metadata what that reason's comment promises.
// When nobody of the mesh answered, Reason is empty.
type Error struct {
	Code     codes.Code
	Reason   string
	Metadata map[string]string
	text     string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s [%s %s]", e.text, e.Code, e.Reason)
}

// raised turns a failed call back into what the mesh said.
func raised(err error) *Error {
	said := status.Convert(err)
	for _, detail := range said.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "handmesh" {
			return &Error{said.Code(), info.GetReason(), info.GetMetadata(), said.Message()}
		}
	}
	return &Error{Code: said.Code(), text: said.Message()}
}

// broken says whether a problem looks like a service that goes away, or a network that breaks. A refusal has another code.
func (e *Error) broken() bool {
	return e.Code == codes.Unavailable || e.Code == codes.Canceled
}
