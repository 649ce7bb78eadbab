package serve

import (
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Codec returns the codec of a gRPC server for a [Service]:
//
//	grpcServer := grpc.NewServer(grpc.ForceServerCodecV2(serve.Codec()))
//
// With it, the strings of a request can be any bytes. Envoy sends the bytes of header fields
// unchanged. The codec of package grpc rejects strings that are not UTF-8 before the Service sees
// them, and Envoy then lets the request through, past all of its limits.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(grpcproto.Name)} }

type codec struct{ encoding.CodecV2 }

// Unmarshal reads a request that package proto rejects in its own way.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	if req, isRequest := v.(*pb.RateLimitRequest); err != nil && isRequest {
		req.Reset()
		if readMessage(data.Materialize(), req.ProtoReflect()) == nil {
			err = nil
		}
	}
	return err
}

// readMessage reads the strings of a message without maps, and those of nested messages, unchanged.
// It leaves all other fields to package proto.
func readMessage(b []byte, m protoreflect.Message) error {
	var others []byte
	for len(b) > 0 {
		number, kind, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(number, kind, b[tag:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		field, rest := m.Descriptor().Fields().ByNumber(number), b[tag+size:]
		if field == nil || kind != protowire.BytesType || field.Message() == nil && field.Kind() != protoreflect.StringKind {
			others = append(others, b[:tag+size]...)
		} else if value, _ := protowire.ConsumeBytes(b[tag:]); field.Message() == nil {
			setString(m, field, string(value))
		} else if err := readMessage(value, inner(m, field)); err != nil {
			return err
		}
		b = rest
	}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(others, m.Interface())
}

func setString(m protoreflect.Message, field protoreflect.FieldDescriptor, s string) {
	if v := protoreflect.ValueOfString(s); field.IsList() {
		m.Mutable(field).List().Append(v)
	} else {
		m.Set(field, v)
	}
}

// inner returns the message of a field to read into, which is a new one if the field is a list.
func inner(m protoreflect.Message, field protoreflect.FieldDescriptor) protoreflect.Message {
	if field.IsList() {
		return m.Mutable(field).List().AppendMutable().Message()
	}
	return m.Mutable(field).Message()
}
