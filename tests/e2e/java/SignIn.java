// A generated client over TLS that signs in with a token.
// Usage: java SignIn HOST PORT CA_FILE TOKEN_FILE NAMESPACE
import foqs.*;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.List;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;
import org.apache.thrift.TException;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.layered.TFramedTransport;

public final class SignIn {
    private static String namespace;

    public static void main(String[] arguments) throws Exception {
        String host = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        SSLContext trusted = trusting(arguments[2]);
        String token = Files.readString(Path.of(arguments[3])).trim();
        namespace = arguments[4];
        boolean isRefused = false;
        try {
            enqueue(connect(trusted, "127.0.0.1", port)); // the certificate is for localhost alone
        } catch (IOException | TException error) {
            isRefused = true;
        }
        done(isRefused, "a certificate of another name is refused");

        Foqs.Client unknown = connect(trusted, host, port);
        done(isDenied(() -> enqueue(unknown)), "a caller without a token is refused");
        done(isDenied(() -> unknown.authenticate(new AuthenticateRequest("foqs_wrong"))), "a wrong token is refused");

        Foqs.Client known = connect(trusted, host, port);
        Identity me = known.authenticate(new AuthenticateRequest(token));
        done(me.principal.equals("mailer"), "a caller with a token is known");
        done(enqueue(known).errors.isEmpty(), "it does what its permissions say");
        for (String group : List.of("", "archive")) {
            DequeueRequest dequeue = new DequeueRequest()
                    .setNamespace_name(namespace)
                    .setTopics(List.of(new TopicDemand("java", 1).setGroup(group)))
                    .setWait_ms(5_000);
            Item item = known.dequeue(dequeue).items.get(0);
            AckRequest ack = new AckRequest().setNamespace_name(namespace).setReceipts(List.of(item.receipt));
            boolean isAcked = known.ack(ack).errors.isEmpty();
            done(isAcked && new String(item.getPayload()).equals("hello"), "the group '" + group + "' has a copy");
        }
        namespace = "other";
        done(isDenied(() -> enqueue(known)), "and nothing else");
    }

    private static SSLContext trusting(String caFile) throws GeneralSecurityException, IOException {
        KeyStore authorities = KeyStore.getInstance(KeyStore.getDefaultType());
        authorities.load(null);
        try (InputStream pem = Files.newInputStream(Path.of(caFile))) {
            authorities.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(authorities);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }

    private static Foqs.Client connect(SSLContext context, String host, int port) throws IOException, TException {
        SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket(host, port);
        SSLParameters parameters = socket.getSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
        socket.setSSLParameters(parameters);
        socket.setSoTimeout(15_000); // above wait_ms
        return new Foqs.Client(new TBinaryProtocol(new TFramedTransport(new TSocket(socket))));
    }

    private static EnqueueResponse enqueue(Foqs.Client client) throws TException {
        NewItem item = new NewItem().setTopic("java").setPayload("hello".getBytes());
        return client.enqueue(new EnqueueRequest().setNamespace_name(namespace).setItems(List.of(item)));
    }

    private interface Call {
        void run() throws TException;
    }

    private static boolean isDenied(Call call) throws TException {
        try {
            call.run();
        } catch (FoqsError error) {
            return error.code == ErrorCode.PERMISSION_DENIED;
        }
        return false;
    }

    private static void done(boolean isRight, String what) {
        if (!isRight) {
            System.err.println("failed: " + what);
            System.exit(1);
        }
        System.out.println("ok: " + what);
    }
}
