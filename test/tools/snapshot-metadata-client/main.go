// The client library of Kubernetes' external-snapshot-metadata as a program. With the devices of two
// volumes, it does what upstream's snapshot-metadata-verifier does, and otherwise what its
// snapshot-metadata-lister does. These two are modules of their own, which the module proxy does not have.
//
// The library takes the token and the authority from the cluster. A caller with others is here, too.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/iterator"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var args iterator.Args
	var source, target string
	var maxResults int
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig of the caller")
	flag.StringVar(&args.Namespace, "n", "", "the namespace of the VolumeSnapshots")
	flag.StringVar(&args.SnapshotName, "s", "", "the VolumeSnapshot")
	flag.StringVar(&args.PrevSnapshotName, "p", "", "the earlier VolumeSnapshot")
	flag.StringVar(&args.PrevSnapshotID, "P", "", "the handle of the earlier snapshot")
	flag.StringVar(&args.SANamespace, "service-account-namespace", "", "the namespace of the token's account")
	flag.StringVar(&args.SAName, "service-account", "", "the account of the token")
	flag.Int64Var(&args.StartingOffset, "starting-offset", 0, "where to begin")
	flag.IntVar(&maxResults, "max-results", 0, "the most blocks of a message")
	flag.StringVar(&source, "src", "", "the device with the snapshot's content")
	flag.StringVar(&target, "tgt", "", "the device with the earlier snapshot's content, or nothing")
	token := flag.String("token", "", "a token, in place of one that the cluster issues for this call")
	authority := flag.String("authority", "", "with -token: a file with the certificate to trust")
	flag.Parse()
	args.MaxResults = int32(maxResults)

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	if args.Clients, err = iterator.BuildClients(config); err != nil {
		return err
	}
	if *token != "" {
		return call(args, *token, *authority)
	}
	if source == "" {
		args.Emitter = &iterator.JSONEmitter{Writer: os.Stdout}
		return iterator.GetSnapshotMetadata(context.Background(), args)
	}
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(target, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	args.Emitter = &iterator.VerifierEmitter{SourceDevice: from, TargetDevice: to}
	if err := iterator.GetSnapshotMetadata(context.Background(), args); err != nil {
		return err
	}
	return to.Sync()
}

// call reads what is allocated, with this token and as a client that trusts this authority.
func call(args iterator.Args, token, authority string) error {
	ctx := context.Background()
	services, err := args.SmsCRClient.CbtV1beta1().SnapshotMetadataServices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(services.Items) != 1 {
		return fmt.Errorf("there are %d SnapshotMetadataServices", len(services.Items))
	}
	spec := services.Items[0].Spec
	trusted := spec.CACert
	if authority != "" {
		if trusted, err = os.ReadFile(authority); err != nil {
			return err
		}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(trusted) {
		return errors.New("there is no certificate to trust")
	}
	secure := credentials.NewTLS(&tls.Config{RootCAs: roots})
	connection, err := grpc.NewClient(spec.Address, grpc.WithTransportCredentials(secure))
	if err != nil {
		return err
	}
	defer connection.Close()
	request := api.GetMetadataAllocatedRequest{
		SecurityToken: token, Namespace: args.Namespace, SnapshotName: args.SnapshotName,
	}
	stream, err := api.NewSnapshotMetadataClient(connection).GetMetadataAllocated(ctx, &request)
	if err != nil {
		return err
	}
	for {
		if _, err = stream.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
