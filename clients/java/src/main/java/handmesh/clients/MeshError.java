package handmesh.clients;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.List;
import java.util.Map;

/**
 * A call failed. Branch on {@link #reason}, or on {@link #code}; the text is for people and may change.
 *
 * <p>The reason is a name of handmesh.error.v1.ErrorReason without its prefix, and the metadata what that reason's comment
 * promises. When nobody of the mesh answered, the reason is empty.
 */
public final class MeshError extends RuntimeException {
  private static final long serialVersionUID = 1;

  public final Status.Code code;
  public final String reason;
  public final transient Map<String, String> metadata;

  MeshError(Status.Code code, String reason, String text, Map<String, String> metadata) {
    super(text + " [" + code + " " + reason + "]");
    this.code = code;
    this.reason = reason;
    this.metadata = metadata;
  }

  /** Turns a failed call back into what the mesh said. */
  static MeshError raised(StatusRuntimeException failed) {
    Status status = failed.getStatus();
    String text = String.valueOf(status.getDescription());
    com.google.rpc.Status said = StatusProto.fromThrowable(failed);
    for (Any detail : said == null ? List.<Any>of() : said.getDetailsList()) {
      if (detail.is(ErrorInfo.class)) {
        ErrorInfo info = unpacked(detail);
        if (info.getDomain().equals("handmesh")) {
          return new MeshError(status.getCode(), info.getReason(), text, info.getMetadataMap());
        }
      }
    }
    return new MeshError(status.getCode(), "", text, Map.of());
  }

  private static ErrorInfo unpacked(Any detail) {
    try {
      return detail.unpack(ErrorInfo.class);
    } catch (InvalidProtocolBufferException malformed) {
      return ErrorInfo.getDefaultInstance();
    }
  }

  /** Says whether it looks like a service that goes away, or a network that breaks. A refusal has another code. */
  boolean isBroken() {
    return code == Status.Code.UNAVAILABLE || code == Status.Code.CANCELLED;
  }
}
